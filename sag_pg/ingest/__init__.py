"""From files to rows: loading, chunking, extraction and the job that ties them together."""
