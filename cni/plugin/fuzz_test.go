// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/kiln-net/kiln/cni/wire"
)

// FuzzParse parses any network configuration and any CNI_ARGS. parse must not panic, and each error has a CNI error code. The resulting
// request survives the protocol of the agent's socket.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"kiln","type":"kiln","server_socket":"/s","routes":[{"dst":"192.0.2.0/24"}]}`),
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u")
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"kiln","cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],"prevResult":{`+
		`"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.16.0.5/16"}]}}`), "")
	f.Add([]byte(`{"cniVersion":"0.4.0","cni.dev/attachments":null,"dns":{"nameservers":["10.96.0.10"]}}`), "K8S_POD_NAME=")
	f.Add([]byte(`{"routes":[{"gw":"192.0.2.1"}]}`), "")
	f.Add([]byte(`{"cniVersion":"1.1.0","routes":[null],"prevResult":{"cniVersion":"1.1.0","interfaces":[null],"ips":[null],"routes":[null]}}`), "")
	f.Fuzz(func(t *testing.T, configuration []byte, text string) {
		args := &skel.CmdArgs{ContainerID: "c", Netns: "/n", IfName: "eth0", Args: text, StdinData: configuration}
		c, err := parse(args)
		if err != nil {
			isCNI(t, err)
			return
		}
		if _, err := c.attachments(); err != nil {
			isCNI(t, err)
		}
		body, err := json.Marshal(c.request(args))
		if err != nil {
			t.Fatalf("encode the request: %v", err)
		}
		var received, again wire.Request
		if err := json.Unmarshal(body, &received); err != nil {
			t.Fatalf("decode the request %s: %v", body, err)
		}
		if repeated, err := json.Marshal(received); err != nil || json.Unmarshal(repeated, &again) != nil || !reflect.DeepEqual(received, again) {
			t.Errorf("the agent reads %s as %s (%v)", body, repeated, err)
		}
	})
}

func isCNI(t *testing.T, err error) {
	t.Helper()
	var coded *types.Error
	if !errors.As(err, &coded) || coded.Code == 0 {
		t.Errorf("error %v has no CNI error code", err)
	}
}
