"""The forms there are, by name."""

from __future__ import annotations

from hf_glm_curriculum.scaling.form_kaplan import Kaplan
from hf_glm_curriculum.scaling.form_powers import Chinchilla, Simplified, TwoPower
from hf_glm_curriculum.scaling.form_repeated import DataLimited
from hf_glm_curriculum.scaling.forms import Form

FORMS: dict[str, Form] = {
    one.name: one for one in (Chinchilla(), TwoPower(), Simplified(), Kaplan(), DataLimited())
}
"""Name → form."""
