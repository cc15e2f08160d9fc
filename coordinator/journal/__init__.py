"""The group journal: entries, schema and explanations. Leaf modules that any reader may import."""
