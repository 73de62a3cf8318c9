"""What README shows of records: tables and pictures, made from the files under tests/records by one script."""
