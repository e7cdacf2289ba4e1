"""Addresses that every guard of outgoing connections agrees on: the fetcher and the operator are tested with them."""

# Never connected to, whatever a setting allows: this machine, its neighbours on the link, metadata services of
# clouds, what is no unicast address, and every form that hides one of these in IPv6.
BLOCKED_ALWAYS = (
    # this machine, and "this network"
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "::1",
    "::",
    # link-local
    "169.254.0.1",
    "169.254.254.254",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    # metadata and credential services of clouds
    "169.254.169.254",  # AWS, Azure, GCP, OpenStack, DigitalOcean, Oracle, Hetzner
    "169.254.169.123",  # AWS: time
    "169.254.169.253",  # AWS: names
    "169.254.170.2",  # AWS: credentials of ECS tasks
    "169.254.170.23",  # AWS: credentials of EKS pods
    "169.254.42.42",  # Scaleway
    "168.63.129.16",  # Azure: the wire server
    "100.100.100.200",  # Alibaba Cloud
    "192.0.0.192",  # Oracle Cloud Classic
    "fd00:ec2::254",  # AWS
    "fd00:ec2::23",  # AWS: credentials of EKS pods
    "fd00:ec2::123",  # AWS: time
    "fd00:ec2::253",  # AWS: names
    "fd20:ce::254",  # GCP
    "fd00:c1::a9fe:a9fe",  # Oracle Cloud
    "fd00:42::42",  # Scaleway
    # no unicast address, or no use for one
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "ff02::1",
    "ff05::2",
    "fec0::1",
    "100::1",
    "2001:db8::1",
    # IPv4 mapped, translated, compatible: the IPv4 address counts
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:168.63.129.16",
    "::ffff:100.100.100.200",
    "::ffff:0.0.0.0",
    "::ffff:0:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "::127.0.0.1",
    "::169.254.169.254",
    "::10.0.0.1",
    # NAT64
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b::168.63.129.16",
    "64:ff9b::100.100.100.200",
    "64:ff9b::0.0.0.0",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1::10.0.0.1",
    # tunnels: 6to4, Teredo
    "2002:a9fe:a9fe::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2001:0:4136:e378:8000:63bf:5601:5601",
)

# Inside an organisation or a cluster: only where a setting, or who wrote the host, allows it.
PRIVATE = (
    "10.0.0.1",
    "10.96.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "fc00::1",
    "fd00::1",
    "fd12:3456:789a::1",
    "fdff:ffff:ffff::1",
    "::ffff:10.0.0.1",
    "::ffff:192.168.1.1",
    "::ffff:0:10.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::172.20.0.1",
)

PUBLIC = (
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "52.95.110.1",
    "100.63.255.255",
    "100.128.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.15",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.167.255.255",
    "192.169.0.1",
    "223.255.255.254",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80b::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
)

# Hosts that are no addresses in the usual spelling, and that the system's resolver reads as 127.0.0.1 or 0.0.0.0: why
# the address that is connected to is checked, and not the text.
SPELLINGS = ("127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "0", "localhost")
