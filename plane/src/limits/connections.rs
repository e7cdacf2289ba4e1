//! Whose connections are counted together (pure): twin of `limits/connections.py`.

use std::net::{IpAddr, Ipv6Addr};

/// What stands for the owner of an address: with IPv6 its network /64, because one customer has all of that.
pub fn address_owner(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => mapped.to_string(),
            None => format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(address: &str) -> String {
        address_owner(address.parse().unwrap())
    }

    #[test]
    fn a_network_of_ipv6_is_one_owner() {
        assert_eq!(owner("10.0.0.1"), "10.0.0.1");
        assert_eq!(owner("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::ffff:1"));
        assert_ne!(owner("2001:db8::1"), owner("2001:db8:0:1::1"));
        assert_eq!(owner("::1"), "::/64");
    }
}
