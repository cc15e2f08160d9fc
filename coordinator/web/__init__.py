"""A broker process over HTTP: metrics, health, groups as JSON, an event stream, and a page. Above the server,
and imported only on demand (`muster serve --http`): importing aiohttp takes as long as starting a broker.
"""
