// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestRedact(t *testing.T) {
	for name, c := range map[string]struct{ object, want string }{
		"flags with values that may be secrets": {
			`args: ["--token=a", "--password", "b", "--tls-private-key-file=/etc/tls.key", "--secret-name", "c", "--api-key", "--v=2"]`,
			`args: ["--token=<redacted>", "--password", "<redacted>", "--tls-private-key-file=/etc/tls.key", "--secret-name", "c", "--api-key", "--v=2"]`,
		},
		"flags and variables with other names of secrets": {
			`args: ["--key=a", "--auth", "b:c", "-pass", "-d", "--set=a=1,db.password=e", "DB_PASSWORD=f", "--authority=g", "--keys-of=h", "--bind=$(POD_IP)"]`,
			`args: ["--key=<redacted>", "--auth", "<redacted>", "-pass", "<redacted>", "--set=a=1,db.password=<redacted>", "DB_PASSWORD=<redacted>", "--authority=g", "--keys-of=h", "--bind=$(POD_IP)"]`,
		},
		"scripts": {
			`{command: ["/bin/sh", "-ec"], args: ["TOKEN=x exec server", "arg"], exec: {command: ["sh", "-c", "curl\t-utoken:x"]}, other: {command: ["bash", "-c", "x"]}}`,
			`{command: ["/bin/sh", "-ec"], args: ["<redacted>", "arg"], exec: {command: ["sh", "-c", "<redacted>"]}, other: {command: ["bash", "-c", "<redacted>"]}}`,
		},
		"arguments that are programs or objects": {
			`args: ["a\nb", '{"password":"x"}', "export;x", "word", "--name=word"]`,
			`args: ["<redacted>", "<redacted>", "<redacted>", "word", "--name=word"]`,
		},
		"a value in args of a flag in command": {`{command: ["run", "--password"], args: ["x", "y"]}`, `{command: ["run", "--password"], args: ["<redacted>", "y"]}`},
		"variables, but not their references": {
			`env: [{name: A, value: x}, {name: B, valueFrom: {secretKeyRef: {name: s, key: password}}}, {name: C}]`,
			`env: [{name: A, value: <redacted>}, {name: B, valueFrom: {secretKeyRef: {name: s, key: password}}}, {name: C}]`,
		},
		"headers of probes": {
			`httpHeaders: [{name: Authorization, value: x}, {name: Accept, value: text}]`,
			`httpHeaders: [{name: Authorization, value: <redacted>}, {name: Accept, value: text}]`,
		},
		"fields, but not references to Secrets": {
			`{spec: {password: x, secretName: s, neighbours: ["192.0.2.1"]}, peers: [{password: {name: s, key: password}}], automountServiceAccountToken: false}`,
			`{spec: {password: <redacted>, secretName: s, neighbours: ["192.0.2.1"]}, peers: [{password: {name: s, key: password}}], automountServiceAccountToken: false}`,
		},
		"an empty password is not hidden": {`{password: ""}`, `{password: ""}`},
		"user and password of a URL": {
			`{proxy: "http://user:pw@proxy:3128/", peers: ["https://a:b@host"], plain: "http://[fd00::1]:80/@x"}`,
			`{proxy: "http://<redacted>@proxy:3128/", peers: ["https://<redacted>@host"], plain: "http://[fd00::1]:80/@x"}`,
		},
		"annotations of other programs, also in templates": {
			`{metadata: {managedFields: [{}], annotations: {example.com/a: x, plain: y, ovn.kubernetes.io/cidr: 10.16.0.0/16, kubeovn.io/token: z, badkubernetes.io/a: b}},
			  spec: {template: {metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", vault.example/role: r}}}}}`,
			`{metadata: {annotations: {example.com/a: <redacted>, plain: <redacted>, ovn.kubernetes.io/cidr: 10.16.0.0/16, kubeovn.io/token: <redacted>, badkubernetes.io/a: <redacted>}},
			  spec: {template: {metadata: {annotations: {vault.example/role: <redacted>}}}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			must.Succeed(t, yaml.Unmarshal([]byte(c.object), &o.Object))
			redact(o)
			got, err := yaml.Marshal(o.Object)
			must.Succeed(t, err)
			var want any
			must.Succeed(t, yaml.Unmarshal([]byte(c.want), &want))
			text, err := yaml.Marshal(want)
			must.Succeed(t, err)
			if string(got) != string(text) {
				t.Errorf("got\n%s\nwant\n%s", got, text)
			}
		})
	}
}
