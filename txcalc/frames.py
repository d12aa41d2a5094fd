"""Data frames for anything with rows: pandas, polars, Arrow (PyCapsule) and HTML, each loaded when needed.

Integers stay exact: a column with one of more than 64 bits holds Python ints (pandas) or decimals (Arrow).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from txcalc.errors import MissingExtra

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Rows = Sequence[Mapping[str, Any]]


def flat(row: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A row without tables in it: their keys become columns, `bytes.saved`."""
    cells: dict[str, Any] = {}
    for key, value in row.items():
        inner = isinstance(value, Mapping)
        cells |= flat(value, f"{above}{key}.") if inner else {f"{above}{key}": value}
    return cells


def columns(rows: Rows) -> dict[str, list[Any]]:
    """Rows as columns, in the order in which they appear; None where a row has no such key."""
    flats = [flat(row) for row in rows]
    names = dict.fromkeys(name for row in flats for name in row)
    return {name: [row.get(name) for row in flats] for name in names}


class Framed:
    """Anything with rows (`_rows`), as the data frames that people use. polars, DuckDB, pyarrow and pandas also take
    the object itself, by Arrow's PyCapsule protocol."""

    def _rows(self) -> Rows:
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas data frame. Errors: `MissingExtra`."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("a pandas data frame", "pandas", "frames") from None
        return pandas.DataFrame(columns(self._rows()))

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars data frame. Errors: `MissingExtra`."""
        try:
            import polars
        except ImportError:
            raise MissingExtra("a polars data frame", "polars", "frames") from None
        return polars.DataFrame(self.to_arrow())

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table; a column with a whole number of more than 64 bits holds decimals. Errors:
        `MissingExtra`."""
        try:
            import pyarrow
        except ImportError:
            raise MissingExtra("an Arrow table", "pyarrow", "frames") from None

        def array(values: Iterable[object]) -> Any:
            values = [float(value) if isinstance(value, Fraction) else value for value in values]
            largest = max((abs(value) for value in values if type(value) is int), default=0)
            return pyarrow.array(values, pyarrow.decimal128(38) if largest >= 2**63 else None)

        return pyarrow.table({name: array(values) for name, values in columns(self._rows()).items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule protocol: `polars.DataFrame(x)`, `duckdb.sql("from x")`, `pyarrow.table(x)`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        """The data frame interchange protocol: `pyarrow.interchange.from_dataframe(x)`, and what draws any frame. It
        has no decimals: a column of them is floats there."""
        import pyarrow

        table = self.to_arrow()
        for i, field in enumerate(table.schema):
            if pyarrow.types.is_decimal(field.type):
                table = table.set_column(i, field.name, table.column(i).cast(pyarrow.float64()))
        return table.__dataframe__(nan_as_null, allow_copy)


def html(title: str, rows: Rows) -> str:
    """A table for a notebook: whole numbers with separators, at the right."""
    from html import escape

    def cell(value: object) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return f'<td style="text-align: right">{value:,}</td>'
        return f'<td style="text-align: left">{"" if value is None else escape(str(value))}</td>'

    table = columns(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in table)
    body = "".join(f"<tr>{''.join(map(cell, line))}</tr>" for line in zip(*table.values(), strict=True))
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
