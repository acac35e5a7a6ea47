// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// Store is the containerd of one machine.
type Store struct {
	Machine machine.Process
	Dir     string // the machine's /var/lib/containerd, as a path of the host
}

// Import imports the images that the store lacks and returns their number. It skips an image that the store has under its reference
// with the same digest.
func (s Store) Import(ctx context.Context, images []*Image) (int, error) {
	known, err := s.digests(ctx)
	if err != nil {
		return 0, err
	}
	var missing []*Image
	for _, img := range images {
		if known[img.Reference] != img.Digest() {
			missing = append(missing, img)
		}
	}
	if len(missing) == 0 {
		return 0, nil
	}
	return len(missing), s.stream(ctx, missing)
}

func (s Store) stream(ctx context.Context, images []*Image) error {
	read, write := io.Pipe()
	streamed := make(chan error, 1)
	go func() {
		err := Stream(write, images, s.has)
		write.CloseWithError(err)
		streamed <- err
	}()
	_, err := s.ctr(ctx, read, "images", "import", "-")
	read.CloseWithError(errors.New("the import has ended")) // unblocks Stream if ctr did not read everything
	return errors.Join(err, ignoreClosed(<-streamed, err))
}

// ignoreClosed drops the writer's error when there is a reader's error, which is its cause.
func ignoreClosed(write, read error) error {
	if read != nil {
		return nil
	}
	return write
}

// digests returns the digests of the images in the store, by reference.
func (s Store) digests(ctx context.Context) (map[string]string, error) {
	out, err := s.ctr(ctx, nil, "images", "ls")
	if err != nil {
		return nil, err
	}
	known := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 2 {
			known[fields[0]] = fields[2]
		}
	}
	return known, nil
}

// has reports whether the content store has a blob.
func (s Store) has(digest v1.Hash) bool {
	_, err := os.Stat(filepath.Join(s.Dir, "io.containerd.content.v1.content/blobs", digest.Algorithm, digest.Hex))
	return err == nil
}

func (s Store) ctr(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	err := s.Machine.Run(ctx, machine.Command{
		Args: append([]string{"ctr", "--namespace", "k8s.io"}, args...), Stdin: stdin, Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
