"""The one exception for mistakes that a person can mend: the cli prints it as one sentence."""


class UserError(ValueError):
    """A sentence for the person at the keyboard: what is wrong, where, and what to do about it."""
