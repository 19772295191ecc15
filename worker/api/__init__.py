"""One dialect a file: a request body becomes generation requests, their outputs become its reply."""
