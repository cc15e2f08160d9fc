"""Tables made from the coordinator's journal, `__group_events`: what rebalanced, why, and what it cost."""
