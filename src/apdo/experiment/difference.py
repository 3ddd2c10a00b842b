"""The differences between two configurations, in words."""

import json


def describe_differences(there: object, here: object, what: str = "", most: int = 4) -> str:
    """The differences between two nested dictionaries, or two values, in words; empty if there are none."""
    old, new = _flat(there, what), _flat(here, what)
    found = [
        f"{name} is {old.get(name, 'absent')} there and {new.get(name, 'absent')} here"
        for name in sorted(old.keys() | new.keys(), key=lambda name: (name.count("."), name))
        if old.get(name) != new.get(name)
    ]
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest


def _flat(nested: object, above: str) -> dict[str, object]:
    """The leaves of nested dictionaries by their dotted names, converted to what JSON gives back."""
    if not isinstance(nested, dict):
        return {above: json.loads(json.dumps(nested))}
    flat: dict[str, object] = {}
    for name, inner in nested.items():
        flat |= _flat(inner, f"{above}.{name}" if above else str(name))
    return flat
