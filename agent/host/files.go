// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// unfinished starts the names of temporary files. The name of the file that they replace follows. Runtimes do not use such files as configurations or
// plugins.
const unfinished = ".kiln-"

// removeUnfinished removes temporary files of an agent that was killed. Only files count that would replace a file with this prefix.
func removeUnfinished(directory, prefix string) error {
	left, err := filepath.Glob(filepath.Join(directory, unfinished+prefix+"*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove unfinished files of an installation: %w", err)
	}
	return nil
}

// install is replace with the content of another file, for a program.
func install(source, path string) error {
	content, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("open a program of the image: %w", err)
	}
	defer content.Close()
	return replace(path, content, 0o755)
}

// replace atomically gives a file this content, if it has another. Programs are larger than the memory of the process, so no content is read as a whole. A
// symbolic link is replaced, and its target stays.
func replace(path string, content io.ReadSeeker, mode fs.FileMode) (err error) {
	same, err := hasContent(path, content)
	if err != nil {
		return fmt.Errorf("compare %s: %w", path, err)
	}
	if same {
		return nil
	}
	fresh, err := os.CreateTemp(filepath.Dir(path), unfinished+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("install %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("install %s: %w", path, err), os.Remove(fresh.Name()))
		}
	}()
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return errors.Join(err, fresh.Close())
	}
	if _, err := io.Copy(fresh, content); err != nil {
		return errors.Join(err, fresh.Close())
	}
	if err := errors.Join(fresh.Chmod(mode), fresh.Sync(), fresh.Close()); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), path)
}

// chunk is the number of bytes that are compared at a time.
const chunk = 64 << 10

// hasContent reports whether path is a regular file with this content.
func hasContent(path string, content io.Reader) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	have, want := make([]byte, chunk), make([]byte, chunk)
	for {
		n, err := fill(file, have)
		m, wantErr := fill(content, want)
		if err := errors.Join(err, wantErr); err != nil {
			return false, err
		}
		if !bytes.Equal(have[:n], want[:m]) {
			return false, nil
		}
		if n < chunk {
			return true, nil
		}
	}
}

// fill reads until the buffer is full or the content ends.
func fill(content io.Reader, buffer []byte) (int, error) {
	n, err := io.ReadFull(content, buffer)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}

// link atomically makes path a symbolic link to target, if it is none.
func link(path, target string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	fresh := filepath.Join(filepath.Dir(path), unfinished+filepath.Base(path))
	if err := os.Symlink(target, fresh); err != nil {
		return fmt.Errorf("make a link: %w", err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return errors.Join(fmt.Errorf("install %s: %w", path, err), os.Remove(fresh))
	}
	return nil
}
