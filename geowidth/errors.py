"""What the user can mend, told apart from what the program got wrong."""

import numbers


class UserError(ValueError):
    """Bad input: the message says in one line what came, what is allowed, and what to do.

    The command line prints it and exits with code 2; from Python it is a ValueError.
    """


def choose(what, value, allowed):
    """Return `value` if it is one of `allowed`; otherwise raise a UserError that lists them."""
    if value not in allowed:
        raise UserError(f"{what} is {value!r}; allowed: {', '.join(map(str, allowed))}")
    return value


def whole(name, value, least):
    """`value` as an int of at least `least`; anything else raises a UserError that names it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise UserError(f"{name} is {value!r}; allowed: whole numbers from {least} up")
    return int(value)
