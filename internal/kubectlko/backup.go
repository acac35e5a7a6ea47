// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// backupsDirectory is the directory of backups in the pods of members.
const backupsDirectory = "/etc/ovn/backups"

// newID returns a unique name for a backup or a recovery, also within one second. With the name of an earlier one, the command
// would take its outcome for the new one's.
func newID() string {
	return "ko-" + time.Now().UTC().Format("20060102t150405z") + "-" + rand.String(5)
}

// backup copies a backup of a database into a local directory.
func (p *plugin) backup(db ovnDatabase) *cobra.Command {
	var directory string
	cmd := &cobra.Command{
		Use: "backup", Short: "Make a backup, and copy it into a directory of this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if db.name == "nb" {
				return p.requestBackup(cmd.Context(), db, directory)
			}
			// ovn-northd derives the whole southbound database, so this backup is only for inspection and never restored.
			pod, err := p.leader(cmd.Context(), db)
			if err != nil {
				return err
			}
			return p.save(filepath.Join(directory, db.stem+"-"+newID()+".db"), func(file *os.File) error {
				return p.run(cmd.Context(), pod, []string{"ovsdb-client", "backup", "unix:/run/ovn/" + db.stem + ".sock", db.schema}, file)
			})
		},
	}
	cmd.Flags().StringVar(&directory, "directory", ".", "where to put it")
	return cmd
}

// requestBackup requests a backup, which every member makes, verifies and keeps, and copies one of them.
func (p *plugin) requestBackup(ctx context.Context, db ovnDatabase, directory string) error {
	id := newID()
	if err := p.change(ctx, func(oc *v1alpha1.OVNCluster) { oc.Spec.Central.Backup.Request = id }); err != nil {
		return err
	}
	var made *v1alpha1.BackupStatus
	if err := p.follow(ctx, func(oc *v1alpha1.OVNCluster) (bool, error) {
		if oc.Spec.Central.Backup.Request != id {
			return false, fmt.Errorf("spec.central.backup.request was changed to %q meanwhile", oc.Spec.Central.Backup.Request)
		}
		made = db.of(&oc.Status).RequestedBackup
		return db.of(&oc.Status).Requested(id), nil
	}); err != nil {
		return err
	}
	fmt.Fprintf(p.errOut, "%s, %d rows, is %s\n", made.Name, made.Rows, whereIs(made))
	if made.Node == "" {
		return errors.New("no node has it to copy from")
	}
	pod, err := p.podOn(ctx, db.component, made.Node)
	if err != nil {
		return err
	}
	return p.save(filepath.Join(directory, made.Name), func(file *os.File) error {
		return p.run(ctx, pod, []string{"cat", filepath.Join(backupsDirectory, made.Name)}, file)
	})
}

// save writes a file under a temporary name and renames it once it is complete.
func (p *plugin) save(path string, fill func(*os.File) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".ko-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(file.Name()) // fails after the rename
	if err := errors.Join(fill(file), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	fmt.Fprintln(p.out, path)
	return nil
}

// restore recreates the northbound database.
func (p *plugin) restore() *cobra.Command {
	var sure bool
	var from, node string
	cmd := &cobra.Command{
		Use:   "restore [BACKUP]",
		Short: "Re-create the northbound database from a backup, by its file's name; by default from the newest",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !sure {
				return errors.New("this replaces the northbound database, whether it serves or not; its present content stays in files next to it. Confirm with --yes")
			}
			r := v1alpha1.Recovery{
				ID: newID(), Northbound: v1alpha1.RecoverySource(from), Southbound: v1alpha1.RecoverNone, When: v1alpha1.RecoverAlways, Node: node,
			}
			if len(args) > 0 {
				r.Backup = filepath.Base(args[0])
			}
			return p.recover(cmd.Context(), r)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&sure, "yes", false, "do it")
	f.StringVar(&from, "from", string(v1alpha1.RecoverBackup), "Backup, Member or Rebuild: see docs/operations/reliability.md")
	f.StringVar(&node, "node", "", "where the database begins; by default the node that has most to begin from")
	return cmd
}

// recover requests a recovery and prints its progress until it has completed.
func (p *plugin) recover(ctx context.Context, r v1alpha1.Recovery) error {
	if err := p.change(ctx, func(oc *v1alpha1.OVNCluster) { oc.Spec.Central.Recovery = &r }); err != nil {
		return err
	}
	said := ""
	return p.follow(ctx, func(oc *v1alpha1.OVNCluster) (bool, error) {
		if now := oc.Spec.Central.Recovery; now == nil || now.ID != r.ID {
			return false, errors.New("spec.central.recovery was changed meanwhile")
		}
		s := oc.Status.Northbound.Recovery
		if s == nil || s.ID != r.ID {
			return false, nil
		}
		if line := fmt.Sprintf("%s: %s", s.Phase, s.Message); line != said {
			said = line
			fmt.Fprintln(p.out, line)
		}
		if s.Phase == v1alpha1.RecoveryRefused {
			return false, errors.New("the recovery was refused: " + s.Message)
		}
		return s.Phase == v1alpha1.RecoveryCompleted, nil
	})
}

// change patches the OVNCluster's spec. It does not overwrite concurrent changes of other fields.
func (p *plugin) change(ctx context.Context, set func(*v1alpha1.OVNCluster)) error {
	oc, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	before := oc.DeepCopy()
	set(oc)
	if err := p.objects.Patch(ctx, oc, client.MergeFrom(before), client.FieldOwner("kubectl-ko")); err != nil {
		return fmt.Errorf("change the OVNCluster: %w", err)
	}
	return nil
}
