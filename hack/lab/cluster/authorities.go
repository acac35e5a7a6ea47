// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/pki"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// authorities holds the CAs and keys of a cluster. They do not change while the cluster exists.
type authorities struct {
	cluster    *pki.Authority // issues certificates of the API server, kubelets and all clients
	frontProxy *pki.Authority // issues the API server's client certificate for aggregated APIs
	accounts   pki.Pair       // signs service account tokens
}

// loadAuthorities loads the authorities from the state directory and creates missing ones.
func (d stateDir) loadAuthorities() (authorities, error) {
	var a authorities
	var err error
	if a.cluster, err = d.authority("ca"); err != nil {
		return a, err
	}
	if a.frontProxy, err = d.authority("front-proxy-ca"); err != nil {
		return a, err
	}
	a.accounts, err = d.pair("sa", pki.SigningKey)
	return a, err
}

func (d stateDir) authority(name string) (*pki.Authority, error) {
	p, err := d.pair(name, func() (pki.Pair, error) {
		a, err := pki.NewAuthority("kiln-lab-" + name)
		if err != nil {
			return pki.Pair{}, err
		}
		return a.Pair, nil
	})
	if err != nil {
		return nil, err
	}
	return pki.LoadAuthority(p)
}

func (d stateDir) pair(name string, create func() (pki.Pair, error)) (pki.Pair, error) {
	path := filepath.Join(string(d), "pki", name)
	certificate, err := os.ReadFile(path + ".crt")
	if err == nil {
		key, err := os.ReadFile(path + ".key")
		return pki.Pair{Certificate: certificate, Key: key}, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return pki.Pair{}, fmt.Errorf("read the cluster's keys: %w", err)
	}
	p, err := create()
	if err != nil {
		return pki.Pair{}, err
	}
	if err := machine.WriteFile(path+".key", p.Key, 0o600); err != nil {
		return pki.Pair{}, err
	}
	return p, machine.WriteFile(path+".crt", p.Certificate, 0o644)
}

// kubeconfig issues a client's certificate and returns its kubeconfig.
func (a authorities) kubeconfig(top topology.Topology, node string, client config.Client) ([]byte, error) {
	credentials, err := a.cluster.Issue(client.Subject(node))
	if err != nil {
		return nil, err
	}
	return config.Kubeconfig(top.APIServer()[0], a.cluster.Certificate, credentials)
}

// nodeFiles returns the configuration and the credentials of a node, by path.
func (a authorities) nodeFiles(top topology.Topology, n topology.Node) (map[string][]byte, error) {
	kubelet, err := config.KubeletConfiguration(top, n)
	if err != nil {
		return nil, err
	}
	proxy, err := config.KubeProxyConfiguration(n)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		config.ContainerdFile:     config.Containerd(),
		config.RegistryFile():     config.Registry(),
		config.KubeletFile:        kubelet,
		config.KubeProxyFile:      proxy,
		config.PKIDir + "/ca.crt": a.cluster.Certificate,
	}
	serving := pki.Subject{Name: "system:node:" + n.Name, DNSNames: []string{n.Name}, Addresses: n.Addresses(), Server: true}
	if err := issue(files, "kubelet", a.cluster, serving); err != nil {
		return nil, err
	}
	clients := []config.Client{config.Kubelet, config.KubeProxy}
	if n.Name == top.Nodes()[0].Name {
		clients = append(clients, config.Admin, config.ControllerManager, config.Scheduler)
		if err := a.controlPlaneFiles(files, top); err != nil {
			return nil, err
		}
	}
	for _, c := range clients {
		if files[c.ConfigFile()], err = a.kubeconfig(top, n.Name, c); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (a authorities) controlPlaneFiles(files map[string][]byte, top topology.Topology) error {
	files[config.PKIDir+"/ca.key"] = a.cluster.Key
	files[config.PKIDir+"/front-proxy-ca.crt"] = a.frontProxy.Certificate
	files[config.PKIDir+"/sa.crt"] = a.accounts.Certificate
	files[config.PKIDir+"/sa.key"] = a.accounts.Key
	kubeletClient := pki.Subject{Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}, Client: true}
	return errors.Join(
		issue(files, "apiserver", a.cluster, config.APIServerSubject(top)),
		issue(files, "apiserver-kubelet-client", a.cluster, kubeletClient),
		issue(files, "front-proxy-client", a.frontProxy, pki.Subject{Name: "front-proxy-client", Client: true}),
	)
}

func issue(files map[string][]byte, name string, by *pki.Authority, s pki.Subject) error {
	p, err := by.Issue(s)
	if err != nil {
		return err
	}
	files[config.PKIDir+"/"+name+".crt"], files[config.PKIDir+"/"+name+".key"] = p.Certificate, p.Key
	return nil
}
