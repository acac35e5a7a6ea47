// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// ovnDatabase is one of OVN's databases.
type ovnDatabase struct {
	name, long, component string
	schema, stem, program string
	of                    func(*v1alpha1.OVNClusterStatus) *v1alpha1.DatabaseStatus
}

var databases = []ovnDatabase{
	{
		"nb", "northbound", "ovn-central-nb", "OVN_Northbound", "ovnnb_db", "nbctl",
		func(s *v1alpha1.OVNClusterStatus) *v1alpha1.DatabaseStatus { return &s.Northbound },
	},
	{
		"sb", "southbound", "ovn-central-sb", "OVN_Southbound", "ovnsb_db", "sbctl",
		func(s *v1alpha1.OVNClusterStatus) *v1alpha1.DatabaseStatus { return &s.Southbound },
	},
}

// ctl returns the command line of ovn-nbctl(8) or ovn-sbctl(8) on a member's socket.
func (d ovnDatabase) ctl(args []string) []string {
	return append([]string{"ovn-" + d.program, "--timeout=30", "--db=unix:/run/ovn/" + d.stem + ".sock"}, args...)
}

// appctl returns the command line that calls a member's ovsdb-server(1).
func (d ovnDatabase) appctl(command string, args ...string) []string {
	return append([]string{"ovs-appctl", "--timeout=30", "--target=/run/ovn/" + d.stem + ".ctl", command, d.schema}, args...)
}

// database returns the command `kubectl ko nb` or `kubectl ko sb`.
func (p *plugin) database(db ovnDatabase) *cobra.Command {
	root := &cobra.Command{
		Use: db.name, Short: "The " + db.long + " database", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(
		&cobra.Command{
			Use: "status", Short: "Its leader, members, last backup and recovery", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return p.status(cmd.Context(), db) },
		},
		&cobra.Command{
			Use: "dbstatus", Short: "Whether each member's storage is consistent", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return p.storage(cmd.Context(), db) },
		},
		&cobra.Command{
			Use: "kick SERVER", Short: "Take a server out of the cluster, which the operator does by itself for members of deleted nodes",
			Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				pod, err := p.leader(cmd.Context(), db)
				if err != nil {
					return err
				}
				return p.run(cmd.Context(), pod, db.appctl("cluster/kick", args[0]), p.out)
			},
		},
		p.backup(db),
	)
	if db.name == "nb" {
		root.AddCommand(p.restore())
	}
	return root
}

// leader returns the pod of a database's leader.
func (p *plugin) leader(ctx context.Context, db ovnDatabase) (*corev1.Pod, error) {
	oc, err := p.cluster(ctx)
	if err != nil {
		return nil, err
	}
	status := db.of(&oc.Status)
	if status.Leader == "" {
		return nil, fmt.Errorf("the %s database has no leader: see `kubectl ko %s status` and `kubectl describe ovncluster %s`", db.long, db.name, oc.Name)
	}
	return p.podOn(ctx, db.component, status.Leader)
}

// status prints the OVNCluster's status of a database, which is available even if no member is.
func (p *plugin) status(ctx context.Context, db ovnDatabase) error {
	oc, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	s := db.of(&oc.Status)
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "cluster:\t%s\nleader:\t%s\nterm:\t%d\n", cmp.Or(s.ClusterID, "none"), cmp.Or(s.Leader, "none"), s.Term)
	for _, b := range []*v1alpha1.BackupStatus{s.LastBackup, s.LastBackupOnClaim} {
		if b != nil {
			fmt.Fprintf(w, "backup:\t%s, %d rows, %s\n", b.Name, b.Rows, whereIs(b))
		}
	}
	if r := s.Recovery; r != nil {
		fmt.Fprintf(w, "recovery:\t%s: %s from %s. %s\n", r.ID, r.Phase, r.Source, r.Message)
	}
	fmt.Fprintln(w, "\nNODE\tADDRESS\tROLE\tSERVER")
	for _, m := range s.Members {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.Node, m.Address, cmp.Or(m.Role, "none"), cmp.Or(m.ServerID, "none"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// storage prints the storage status of every member. It fails if a member does not respond or its storage has an error.
func (p *plugin) storage(ctx context.Context, db ovnDatabase) error {
	oc, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, m := range db.of(&oc.Status).Members {
		fmt.Fprintf(p.out, "%s: ", m.Node)
		answer := &bytes.Buffer{}
		pod, err := p.podOn(ctx, db.component, m.Node)
		if err == nil {
			err = p.run(ctx, pod, db.appctl("ovsdb-server/get-db-storage-status"), io.MultiWriter(p.out, answer))
		}
		if err != nil {
			fmt.Fprintln(p.out, err)
		} else if err = checkStorage(answer.String()); err != nil {
			err = fmt.Errorf("the storage of the member on node %s: %w", m.Node, err)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// checkStorage returns an error unless the answer of ovsdb-server/get-db-storage-status (ovsdb-server(1)) reports no error. The
// server also reports an error in a successful answer.
func checkStorage(answer string) error {
	if answer = strings.TrimSpace(answer); answer != "status: ok" {
		return errors.New(answer)
	}
	return nil
}

// follow polls the OVNCluster until done returns true or an error. It retries while the API server does not answer.
func (p *plugin) follow(ctx context.Context, done func(*v1alpha1.OVNCluster) (bool, error)) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	said := ""
	for {
		oc, err := p.cluster(ctx)
		switch {
		case err == nil:
			said = ""
			if is, err := done(oc); is || err != nil {
				return err
			}
		case refused(err):
			return err
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			fmt.Fprintf(p.errOut, "%s; trying again\n", said)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the operation continues without this command", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// refused reports whether the API server has refused a request, so that a retry is useless.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests
}

func whereIs(b *v1alpha1.BackupStatus) string {
	if b.PersistentVolumeClaim != "" {
		return "on the claim " + b.PersistentVolumeClaim
	}
	return "on node " + b.Node
}
