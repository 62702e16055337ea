"""The Arrow types of Parquet's columns. Pure."""

from collections.abc import Iterator

import pyarrow as pa


def leaves(type: pa.DataType) -> Iterator[pa.DataType]:
    """The types of a column's values, in Parquet's order."""
    if isinstance(type, pa.BaseExtensionType):
        type = type.storage_type
    if type.num_fields == 0:
        yield type
    for index in range(type.num_fields):
        yield from leaves(type.field(index).type)


def microseconds(type: pa.DataType) -> pa.DataType:
    """The same type with microseconds where it has nanoseconds; itself if it has none."""
    if not any(getattr(leaf, "unit", None) == "ns" for leaf in leaves(type)):
        return type
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", type.tz)
    if pa.types.is_time64(type):
        return pa.time64("us")
    if pa.types.is_duration(type):
        return pa.duration("us")
    if pa.types.is_struct(type):
        return pa.struct([_with_microseconds(type.field(index)) for index in range(type.num_fields)])
    if pa.types.is_list(type):
        return pa.list_(_with_microseconds(type.value_field))
    if pa.types.is_large_list(type):
        return pa.large_list(_with_microseconds(type.value_field))
    if pa.types.is_map(type):
        return pa.map_(_with_microseconds(type.key_field), _with_microseconds(type.item_field))
    return type  # each of its values is tried alone


def _with_microseconds(field: pa.Field) -> pa.Field:
    return field.with_type(microseconds(field.type))
