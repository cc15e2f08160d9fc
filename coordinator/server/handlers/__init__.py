"""One handler per API, in a file per family: `async def join_group(broker, request, context) ->
JoinGroupResponse`.

A handler checks what needs the broker's view (topics, bounds of the settings), hands the work to the group
core or the partitions, and puts the answer together. It refuses by raising KafkaError; see `router` for what
becomes of that.
"""
