"""The base of all immutable values."""

from typing import dataclass_transform

from msgspec import Struct, field


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True):
    """Fields that never change; `msgspec.structs.replace` returns a changed copy."""
