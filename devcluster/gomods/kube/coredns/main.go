// CoreDNS with the plugins of kubeadm's Corefile only: a third of the stock binary's packages to compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// Order is meaning: each directive hands the query to the one after it.
	dnsserver.Directives = []string{
		"reload", "ready", "health", "prometheus", "errors", "cache", "loadbalance", "kubernetes", "loop", "forward",
	}
	coremain.Run()
}
