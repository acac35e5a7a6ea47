// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import "testing"

// TestAddressesAreExplainedInTheLog: at verbosity 1 the log has the source of each address and the reason why it is freed.
func TestAddressesAreExplainedInTheLog(t *testing.T) {
	w := newWorld(t)
	logged := w.Logged()
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	const given, freed = `"gave addresses to a port"`, `"freed the addresses of a port"`

	web := w.pod("default", "web")
	logged(given, `"port"="web.default" "subnet"="ovn-default" "addresses"="`+address(web)+`" "source"="subnet"`)
	logged(`"committed rows" "owner"="Pod/default/web" "inserted"=1 "updated"=0 "deleted"=0`)
	w.pod("default", "fixed", "ip_address", "10.16.0.77")
	logged(given, `"port"="fixed.default" "subnet"="ovn-default" "addresses"="10.16.0.77" "source"="request"`)
	w.Delete(web)
	logged(freed, `"port"="web.default" "subnet"="ovn-default" "addresses"="`+address(web)+`" "reason"="the pod is deleted or finished`)
	logged(`"committed rows" "owner"="Pod/default/web" "inserted"=0 "updated"=0 "deleted"=1`)

	set := w.statefulSet("db", 0, 1)
	first := replica(set, 0, "n1")
	w.Create(first)
	w.allocated(first)
	w.Delete(first)
	w.away(process, first)
	logged(`"retained the addresses of a port"`, `"port"="db-0.default"`, `"reason"="a StatefulSet may create the pod again"`)
	again := replica(set, 0, "n2")
	w.Create(again)
	w.allocated(again)
	logged(given, `"port"="db-0.default"`, `"source"="retained"`)

	process.Stop()
	w.start()
	logged(given, `"port"="db-0.default"`, `"source"="restored"`)
}
