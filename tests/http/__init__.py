"""What a broker process shows over HTTP, without a browser."""
