#!/usr/bin/env bash
# Builds kube-apiserver into Go's bin folder, from its module: ten minutes of processor time. Its own parts are modules, too, of
# versions that belong together. test_cluster.py needs it, and etcd (Debian: etcd-server).
set -euo pipefail
version=34.3
bin=$(go env GOPATH)/bin
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
module=$(go mod download -json "k8s.io/kubernetes@v1.$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
sed -e 's#^module .*#module build#' -e "s#=> ./staging/src/\(k8s.io/[a-z-]*\)#=> \1 v0.$version#" "$module/go.mod" >go.mod
echo "require k8s.io/kubernetes v1.$version" >>go.mod
install -m 644 "$module/go.sum" go.sum
CGO_ENABLED=0 GOFLAGS=-mod=mod go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.$version" \
    -o "$bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
