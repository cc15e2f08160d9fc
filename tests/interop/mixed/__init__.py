"""Groups whose members are different clients: ours beside stock clients."""
