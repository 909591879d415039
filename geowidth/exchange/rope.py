"""Rotary positions in a config.json: transformers 4's rope_theta and rope_scaling, or 5's rope_parameters.

Both versions of the library read rope_theta with rope_scaling, so that is what is written. Where two places state the
same thing differently, the versions disagree about which holds: such a config is refused.
"""

from typing import Any

from geowidth.errors import UserError, choose, positive

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
DEFAULT_BASE = 10000.0


def rope_of(config: dict[str, Any], where: str) -> tuple[float, dict[str, Any] | None]:
    """(base, scaling): the angles' base as a float, and a dict with rope_type linear or llama3, or None."""
    base, scaling = stated_rope(config, where)
    base = positive(f"{where}: rope_theta", DEFAULT_BASE if base is None else base)
    kind = choose(f"{where}: kind of rope scaling", _kind(scaling or {}, where), list(NEEDED))
    if scaling is None or kind == "default":
        return base, None
    for name in NEEDED[kind]:
        if name not in scaling:
            raise UserError(f"{where}: rope scaling of kind {kind} lacks {name}; needed: {', '.join(NEEDED[kind])}")
        positive(f"{where}: {name} of the rope scaling", scaling[name])
    outer = config.get("original_max_position_embeddings")
    if kind == "llama3" and outer not in (None, scaling["original_max_position_embeddings"]):
        raise UserError(f"{where}: original_max_position_embeddings is stated twice, differently; state it once")
    return base, {name: value for name, value in scaling.items() if name != "type"} | {"rope_type": kind}


def stated_rope(config: dict[str, Any], where: str) -> tuple[Any, dict[str, Any] | None]:
    """(base or None, scaling or None) as they are stated, without the base in the second."""
    bases = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    found = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = config.get(name)
        if value is not None and not isinstance(value, dict):
            raise UserError(f"{where}: {name} is {value!r}; needed: an object")
        if value:
            found[name] = {key: item for key, item in value.items() if key != "rope_theta"}
            bases |= {f"{name}.rope_theta": value["rope_theta"]} if "rope_theta" in value else {}
            _refuse_unread(found[name], name, where)
    if config.get("partial_rotary_factor") not in (None, 1.0):
        raise UserError(f"{where}: partial_rotary_factor is {config['partial_rotary_factor']!r}; allowed: 1.0")
    if any(value is None for value in bases.values()):
        raise UserError(f"{where}: rope_theta is null; allowed: finite numbers above 0")
    for what, stated in (("rope_theta", bases), ("the rope scaling", found)):
        if len(stated) > 1 and any(value != next(iter(stated.values())) for value in stated.values()):
            raise UserError(f"{where}: {what} is stated in {' and '.join(stated)}, differently; state it once")
    return next(iter(bases.values()), None), next(iter(found.values()), None)


def _refuse_unread(scaling, name, where):
    nested = next((key for key, value in scaling.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise UserError(f"{where}: {name} has angles of its own for {nested}; allowed: the same for all layers")
    if scaling.get("partial_rotary_factor") not in (None, 1.0):
        raise UserError(f"{where}: partial_rotary_factor is {scaling['partial_rotary_factor']!r}; allowed: 1.0")


def _kind(scaling, where):
    """The kind of scaling, by its newer or its older name."""
    kinds = [scaling[name] for name in ("rope_type", "type") if name in scaling]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise UserError(f"{where}: rope scaling has rope_type {kinds[0]!r} and type {kinds[1]!r}; state one")
    return kinds[0] if kinds else "default"


def with_older_rope(config: dict[str, Any], where: str = "config.json") -> dict[str, Any]:
    """The config with its rotary positions as rope_theta and rope_scaling, which transformers 4 and 5 both read."""
    base, scaling = stated_rope(config, where)
    config = {name: value for name, value in config.items() if name != "rope_parameters" or not value}
    if base is not None:
        config["rope_theta"] = base
    if scaling and (set(scaling) != {"rope_type"} or scaling["rope_type"] != "default"):
        config["rope_scaling"] = scaling
    return config
