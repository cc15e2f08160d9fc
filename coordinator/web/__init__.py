"""A broker process over HTTP: metrics, health, groups as JSON, an event stream, and a page. Sits above the
server and is imported only on demand (`muster serve --http`): importing aiohttp takes as long as starting a
broker.
"""
