"""Named errors: one root, one subclass for each thing a user can put right."""


class HfGlmCurriculumError(Exception):
    """Root of every error this package raises on purpose.

    The message is one line: the field or file, the rule it broke, the value received and the
    way out. The command line prints it without a traceback.
    """


class ConfigError(HfGlmCurriculumError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(HfGlmCurriculumError):
    """A file, row or column does not hold what its format requires."""


class ModelError(HfGlmCurriculumError):
    """A model or tokenizer cannot be loaded or lacks a part that is needed."""


class IncompatibleError(HfGlmCurriculumError):
    """A host (trainer, model, option) is known not to work with the part asked for."""


class StateError(HfGlmCurriculumError):
    """Saved state cannot be written, read or matched to the run under way."""


class MissingDependencyError(HfGlmCurriculumError, ImportError):
    """An optional library is needed and not installed; the message names the extra."""
