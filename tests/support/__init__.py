"""What more than one suite of tests needs: the API server, its client, the chart's renderer."""
