// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Names of the kubectl plugin on nodes, as in package kubectlko. kubectl runs the second for completion in the shell.
const toolName, toolCompleter = "kubectl-ko", "kubectl_complete-ko"

// ReasonToolNotInstalled is the reason of the node's event when the kubectl plugin cannot be installed on it.
const ReasonToolNotInstalled = "ToolNotInstalled"

// Tool installs the kubectl plugin on the node, for administrators on the node. No pod depends on it, so a failure is only reported.
type Tool struct {
	// Source is the program in the agent's image. Directory is the node's directory.
	Source    string
	Directory string
	// Node is this node's name, on which Recorder reports failures.
	Node     string
	Recorder events.EventRecorder
	// After delays the installation until it is closed.
	After <-chan struct{}
}

// Start installs the plugin once, and after a failure again until it succeeds or ctx ends (manager.Runnable). No event reports that a file system has free
// space or became writable.
func (t *Tool) Start(ctx context.Context) error {
	select {
	case <-t.After:
	case <-ctx.Done():
		return nil
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: t.Node, UID: types.UID(t.Node)}} // the UID with which kubelets report events
	pauses := wait.Backoff{Duration: time.Minute, Factor: 2, Jitter: 0.1, Steps: math.MaxInt32, Cap: time.Hour}.DelayFunc()
	_ = pauses.Until(ctx, true, true, func(ctx context.Context) (bool, error) { // it only fails when ctx ends
		err := t.Install()
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot install the kubectl plugin on this node")
			k8s.Warn(t.Recorder, node, ReasonToolNotInstalled, fmt.Sprintf(
				"the kubectl plugin is not installed in the directory of spec.agent.toolingDirectory of the OVNCluster: %v", err))
		}
		return err == nil, nil
	})
	return nil
}

// Install copies the program if the node's file differs, and links the completion to it. It also replaces files that other programs created. A running
// program keeps its old file.
func (t *Tool) Install() error {
	if err := removeUnfinished(t.Directory, "kubectl"); err != nil {
		return err
	}
	if err := install(t.Source, filepath.Join(t.Directory, toolName)); err != nil {
		return err
	}
	return link(filepath.Join(t.Directory, toolCompleter), toolName)
}

// Remove removes the plugin from the node. It does not write to a directory without the plugin, which can be read-only.
func (t *Tool) Remove() error {
	err := removeUnfinished(t.Directory, "kubectl")
	for _, name := range []string{toolCompleter, toolName} {
		path := filepath.Join(t.Directory, name)
		if _, e := os.Lstat(path); errors.Is(e, fs.ErrNotExist) {
			continue
		}
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove the kubectl plugin: %w", err)
	}
	return nil
}
