"""What a broker process shows over HTTP: metrics, health, groups as JSON, events as a stream, and a page.

Above the server, and imported only when it is asked for (`muster serve --http`): aiohttp takes as long to
import as a broker takes to start.
"""
