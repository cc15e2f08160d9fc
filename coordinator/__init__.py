"""The server: group coordinators, topic data, storage and the listeners in front of them."""
