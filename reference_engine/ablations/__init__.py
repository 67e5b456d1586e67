"""What paging, continuous batching and full attention are measured against."""
