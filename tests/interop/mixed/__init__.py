"""Groups whose members are different clients: ours beside those that people have."""
