// Stands in for etcd's module of this name, which the module proxy does not serve. Nothing here imports it.
module go.etcd.io/etcd/cache/v3

go 1.26.0
