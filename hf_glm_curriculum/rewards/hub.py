"""Uploading a saved model to the hub, card and all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from hf_glm_curriculum.errors import ModelError


def upload(
    save: Callable[[str], Any],
    repo_id: str,
    *,
    commit_message: str,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Save into a temporary folder and upload it as one commit; returns the commit's address.

    Args:
        save: writes everything into a folder.
        repo_id: the repository, made if it is not there.
        commit_message: of the commit.
        private: whether a repository made for it is private.
        token: as huggingface_hub takes it.
        revision: the branch.
        create_pr: open a pull request in place of a commit.

    Raises:
        ModelError: The hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        try:
            name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=commit_message,
                revision=revision,
                create_pr=create_pr,
            )
        except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"cannot upload to {repo_id!r} ({reason}); check the name, your token (hf auth "
                "login) and the connection, or save_pretrained and upload the folder"
            ) from error
    return str(commit.commit_url)
