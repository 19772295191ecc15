"""Messages and text: chat templates. Knows neither tokens nor HTTP."""
