// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/serving/tlsdir"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/ovsdb/startup"
)

// ArchiveOptions are the options of `kiln backups`.
type ArchiveOptions struct {
	Database Database
	// Directory of the backups: the mount point of the PersistentVolumeClaim.
	Directory string
	// TLSDir holds tls.crt, tls.key, ca.crt (the members' CA) and admin-ca.crt (the CA of permitted readers).
	TLSDir string
	// Listen is the address of the endpoint; if invalid, all addresses.
	Listen netip.Addr
	// HealthAddress of the probes.
	HealthAddress string
	// Tool is ovsdb-tool, with leading arguments if it needs any to run.
	Tool []string
	// Clusters delivers the newest OVNCluster (ovncluster.Watch).
	Clusters <-chan *v1alpha1.OVNCluster
	Log      logr.Logger
}

// archive keeps backups on a volume apart from the members' nodes: an adminapi.Archive. It is a client of the database, so that
// members do not mount the claim.
type archive struct {
	options ArchiveOptions
	files   files
	backups backups
}

var _ adminapi.Archive = (*archive)(nil)

// RunArchive makes backups until ctx ends. It serves them to the operator and to members that a recovery recreates.
func RunArchive(ctx context.Context, o ArchiveOptions) error {
	if !o.Listen.IsValid() {
		o.Listen = anyAddress()
	}
	a := &archive{options: o, files: files{tool: o.Tool, database: o.Database, backupDir: o.Directory}}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return supervisor.ServeHealth(ctx, o.HealthAddress, a.ready, version.Own, nil) })
	group.Go(func() error {
		address := net.JoinHostPort(o.Listen.String(), strconv.Itoa(adminapi.PortArchive))
		return adminapi.Serve(ctx, address, o.TLSDir, adminapi.ArchiveHandler(a))
	})
	group.Go(func() error { a.follow(ctx); return nil })
	return group.Wait()
}

// follow makes backups when they are due.
func (a *archive) follow(ctx context.Context) {
	a.backups.found(a.files)
	whenDue(ctx, a.options.Clusters, func(cluster *v1alpha1.OVNCluster) time.Duration {
		status := a.options.Database.Of(cluster.Status)
		connect := func(ctx context.Context) (*jsonrpc.Conn, error) { return a.connect(ctx, status) }
		return a.backups.makeIfDue(ctx, a.files, cluster.Spec.Central.Backup, status, connect, a.options.Log)
	})
}

// connect connects to any member that is part of the cluster: a backup holds the data that the cluster has agreed on.
func (a *archive) connect(ctx context.Context, status v1alpha1.DatabaseStatus) (*jsonrpc.Conn, error) {
	config, err := tlsdir.Client(a.options.TLSDir, a.options.Database.ServerName)
	if err != nil {
		return nil, err
	}
	port := a.options.Database.Clients[len(a.options.Database.Clients)-1].Port // the port without an RBAC role
	var failures []error
	for _, m := range status.Members {
		conn, err := jsonrpc.DialTLS(ctx, net.JoinHostPort(m.Address, strconv.Itoa(port)), config)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if err = isMember(conn, a.options.Database.Name, status.ClusterID); err == nil {
			return conn, nil
		}
		conn.Close()
		failures = append(failures, fmt.Errorf("member at %s: %w", m.Address, err))
	}
	return nil, fmt.Errorf("no member of the database serves: %w", errors.Join(failures...))
}

// isMember returns an error unless the server is connected to this cluster (ovsdb-server(5), Database).
func isMember(conn *jsonrpc.Conn, database, clusterID string) error {
	request := []any{"_Server", map[string]any{
		"op": "select", "table": "Database", "where": []any{[]any{"name", "==", database}}, "columns": []string{"connected", "cid"},
	}}
	var results []struct {
		Rows []struct {
			Connected bool            `json:"connected"`
			CID       json.RawMessage `json:"cid"`
		} `json:"rows"`
	}
	if err := conn.Call("transact", request, &results); err != nil {
		return fmt.Errorf("ask for its cluster: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || !results[0].Rows[0].Connected {
		return errors.New("not connected to its cluster")
	}
	var id [2]string // ["uuid", "…"] (RFC 7047, section 5.1); a member without a cluster ID has another form
	if err := json.Unmarshal(results[0].Rows[0].CID, &id); err != nil || id[1] != clusterID {
		return fmt.Errorf("of cluster %s and not %s", results[0].Rows[0].CID, clusterID)
	}
	return nil
}

// ready returns an error if the backups cannot be listed.
func (a *archive) ready(context.Context) error {
	_, err := a.files.listBackups()
	return err
}

// Status implements adminapi.Archive.
func (a *archive) Status(context.Context) (adminapi.Status, error) {
	status := adminapi.Status{Versions: version.Programs{Kiln: version.Kiln}}
	a.backups.tell(&status)
	return status, nil
}

// Open implements adminapi.Archive. It opens only files that are backups.
func (a *archive) Open(name string) (io.ReadCloser, error) {
	all, err := a.files.listBackups()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(b adminapi.Backup) bool { return b.Name == name }) {
		return nil, fmt.Errorf("backup %q: %w", name, fs.ErrNotExist)
	}
	file, err := os.Open(filepath.Join(a.files.backups(), name))
	if err != nil {
		return nil, fmt.Errorf("open a backup: %w", err)
	}
	return file, nil
}

// fetch downloads the plan's backup from the archive to this node, unless the plan names no archive or the file already exists.
func (m *member) fetch(ctx context.Context, f files, p startup.Plan) error {
	if p.Archive == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(f.backups(), p.Backup)); err == nil {
		return nil // fetched before a restart
	}
	address, err := netip.ParseAddr(p.Archive)
	if err != nil {
		return fmt.Errorf("fetch backup %s: %w", p.Backup, err)
	}
	config, err := tlsdir.Client(m.options.TLSDir, adminapi.ArchiveName)
	if err != nil {
		return err
	}
	client := adminapi.NewClient(netip.AddrPortFrom(address, adminapi.PortArchive), config)
	defer client.Close()
	return f.takeIn(ctx, p.Backup, func(to io.Writer) error { return client.Backup(ctx, p.Backup, to) })
}
