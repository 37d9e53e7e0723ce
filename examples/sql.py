#!/usr/bin/env python3
"""DuckDB on a mounted model: which dtypes and shapes take the space (pip install duckdb).

    python3 examples/sql.py /tmp/tiny-llama
"""

import sys

import duckdb

print(
    duckdb.sql(
        """
        SELECT v ->> 'dtype' AS dtype, v ->> 'shape' AS shape,
               count(*) AS tensors, sum((v ->> 'nbytes')::BIGINT) AS bytes
        FROM (SELECT unnest(map_values(json_transform(content, '"MAP(VARCHAR, JSON)"'))) AS v
              FROM read_text($index))
        WHERE v ->> 'origin' = 'stored'
        GROUP BY ALL ORDER BY bytes DESC
        """,
        params={"index": sys.argv[1] + "/index.json"},
    )
)
