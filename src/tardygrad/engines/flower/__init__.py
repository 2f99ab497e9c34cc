"""The engine inside a Flower app: jobs are messages to the app's nodes."""
