"""What peers are configured with, as text (pure)."""

from pathlib import Path
from urllib.parse import urlsplit

_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream server {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096{ssl}; keepalive_requests 1000000000; {certificate}
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
_HAPROXY = """
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port} backlog 4096
  default_backend servers
backend servers
  server one {upstream}
"""
_ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: servers, timeout: 600s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {types}.filters.http.router.v3.Router}}
  clusters:
  - name: servers
    type: STATIC
    circuit_breakers:
      thresholds: [{{max_connections: 20000, max_requests: 20000, max_pending_requests: 20000}}]
    load_assignment:
      cluster_name: servers
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {host}, port_value: {upstream_port}}}}}}}}}]
"""


def nginx(folder: Path, port: int, upstream: str, certificate: Path | None = None) -> str:
    """`upstream`: a URL. `certificate`: a file in PEM with its key beside it, NAME.key; None: without TLS."""
    lines = (
        f"ssl_certificate {certificate}; ssl_certificate_key {certificate.with_suffix('.key')};" if certificate else ""
    )
    ssl = " ssl" if certificate else ""
    where = urlsplit(upstream).netloc
    return _NGINX.format(folder=folder, port=port, upstream=where, ssl=ssl, certificate=lines)


def haproxy(port: int, upstream: str) -> str:
    return _HAPROXY.format(port=port, upstream=urlsplit(upstream).netloc)


def envoy(port: int, upstream: str) -> str:
    where = urlsplit(upstream)
    types = "type.googleapis.com/envoy.extensions"
    return _ENVOY.format(port=port, host=where.hostname, upstream_port=where.port, types=types)
