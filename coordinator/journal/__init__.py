"""The group journal: entries, schema and explanations. Leaves that any reader may import."""
