"""Classic groups: those whose members join and sync (JoinGroup, SyncGroup)."""
