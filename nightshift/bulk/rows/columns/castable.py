"""Arrays that pyarrow casts to the values that they have."""

from collections.abc import Callable

import pyarrow as pa


def castable(values: pa.Array) -> pa.Array:
    """The same values, with nulls of booleans in place of those of the type null inside other types.

    pyarrow casts each array of the type null to one of as many nulls as the whole column has rows: lists of
    them become others, or end the process.
    """
    is_safe = pa.types.is_null(values.type) or not has_part(values.type, pa.types.is_null)
    return values if is_safe else _without_nulls(values)


def has_part(type: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is of a kind, or has a part that is."""
    return is_kind(type) or any(has_part(part, is_kind) for part in _parts(type))


def _parts(type: pa.DataType) -> list[pa.DataType]:
    if isinstance(type, pa.BaseExtensionType):
        return [type.storage_type]
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return [type.value_type]
    return [type.field(number).type for number in range(type.num_fields)]


def _without_nulls(values: pa.Array) -> pa.Array:
    type = values.type
    if pa.types.is_null(type):
        return pa.nulls(len(values), pa.bool_())
    if not has_part(type, pa.types.is_null):
        return values
    if isinstance(type, pa.BaseExtensionType):
        return _without_nulls(values.storage)
    if pa.types.is_dictionary(type):
        return pa.DictionaryArray.from_arrays(values.indices, _without_nulls(values.dictionary))
    if pa.types.is_run_end_encoded(type):
        items = _without_nulls(values.values)
        runs = pa.run_end_encoded(type.run_end_type, items.type)
        return _rebuilt(values, runs, 1, [values.run_ends, items])
    if pa.types.is_struct(type):
        fields = [_without_nulls(values.field(number)) for number in range(type.num_fields)]
        return _struct([type.field(number) for number in range(type.num_fields)], fields, values.is_null())
    if pa.types.is_map(type):
        return _map_without_nulls(values)
    return _list_without_nulls(values)


def _map_without_nulls(values: pa.Array) -> pa.Array:
    parts = [_without_nulls(values.keys), _without_nulls(values.items)]
    fields = [values.type.key_field, values.type.item_field]
    entries = _struct(fields, parts, None)
    key, item = entries.type.field(0), entries.type.field(1)
    return _rebuilt(values, pa.map_(key, item, values.type.keys_sorted), 2, [entries])


def _list_without_nulls(values: pa.Array) -> pa.Array:
    type, items = values.type, _without_nulls(values.values)
    field = type.value_field.with_type(items.type)
    if pa.types.is_fixed_size_list(type):
        return _rebuilt(values, pa.list_(field, type.list_size), 1, [items])
    if pa.types.is_list_view(type):
        return _rebuilt(values, pa.list_view(field), 3, [items])
    if pa.types.is_large_list_view(type):
        return _rebuilt(values, pa.large_list_view(field), 3, [items])
    return _rebuilt(values, pa.list_(field) if pa.types.is_list(type) else pa.large_list(field), 2, [items])


def _struct(fields: list[pa.Field], parts: list[pa.Array], is_null: pa.Array | None) -> pa.Array:
    typed = [field.with_type(part.type) for field, part in zip(fields, parts, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=typed, mask=is_null)


def _rebuilt(values: pa.Array, type: pa.DataType, buffers: int, children: list[pa.Array]) -> pa.Array:
    """An array of another type, with the first buffers of `values`, which are its own, and other children."""
    own = values.buffers()[:buffers]
    return pa.Array.from_buffers(type, len(values), own, offset=values.offset, children=children)
