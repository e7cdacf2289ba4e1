// etcd, as its own module's main does it: that module has replace lines, so it cannot be built as a dependency.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
