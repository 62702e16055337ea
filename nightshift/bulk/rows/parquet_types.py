"""The Arrow types of Parquet's columns. Pure."""

from collections.abc import Callable, Iterator

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
    return _with_leaves(type, _in_microseconds)


def with_floats_as(type: pa.DataType, double: pa.DataType) -> pa.DataType:
    """The same type with another one where it has floats of 32 bits; itself if it has none."""
    return _with_leaves(type, lambda leaf: double if pa.types.is_float32(leaf) else leaf)


def _in_microseconds(leaf: pa.DataType) -> pa.DataType:
    if getattr(leaf, "unit", None) != "ns":
        return leaf
    if pa.types.is_timestamp(leaf):
        return pa.timestamp("us", leaf.tz)
    return pa.time64("us") if pa.types.is_time64(leaf) else pa.duration("us")


def _with_leaves(type: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same type with changed leaves; itself if none changes, or if it is of a kind that is not cast."""
    if all(change(leaf) is leaf for leaf in leaves(type)):
        return type

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(_with_leaves(field.type, change))

    if pa.types.is_struct(type):
        return pa.struct([changed(type.field(index)) for index in range(type.num_fields)])
    if pa.types.is_list(type):
        return pa.list_(changed(type.value_field))
    if pa.types.is_large_list(type):
        return pa.large_list(changed(type.value_field))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(changed(type.value_field), type.list_size)
    if pa.types.is_map(type):
        return pa.map_(changed(type.key_field), changed(type.item_field))
    return change(type) if type.num_fields == 0 and not isinstance(type, pa.BaseExtensionType) else type
