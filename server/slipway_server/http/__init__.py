"""The API of the pod: JSON and SSE in front of the engine process."""
