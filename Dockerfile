# docker build -t tf-ensembles .          # CPU; the build fails unless the self-test passes
# docker run --rm tf-ensembles info
# docker run --rm -v "$PWD/results:/results" tf-ensembles reproduce --preset quick --results /results
FROM python:3.11-slim
ENTRYPOINT ["tf-ensembles"]
CMD ["info", "--check"]

# Such as --build-arg EXTRAS=plot; "all" also has TF-Agents, Ray and the documentation's tools.
ARG EXTRAS=plot,data,linear
COPY . /source
# What builds, then the package as a wheel, then that with what it needs: the very files that were tested, or nothing.
RUN python -m pip install --no-cache-dir --require-hashes --requirement /source/constraints/hashed/build.txt
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /source/dist /source
RUN wheel=$(ls /source/dist/*.whl) && sum=$(sha256sum "$wheel" | cut -d ' ' -f 1) && \
    python -m pip install --no-cache-dir --require-hashes --no-build-isolation \
    --constraint /source/constraints/hashed/3.11.txt "tf-ensembles[$EXTRAS] @ file://$wheel#sha256=$sum"
# For GPUs, with the NVIDIA container toolkit on the host; NVIDIA's packages have no hashes here:
# RUN python -m pip install --no-cache-dir --constraint /source/constraints/3.11.txt "tensorflow[and-cuda]"
RUN tf-ensembles info --check
