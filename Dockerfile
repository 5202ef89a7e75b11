# docker build -t tf-ensembles .          # CPU; the build fails unless the self-test passes
# docker run --rm tf-ensembles info
# docker run --rm -v "$PWD/results:/results" tf-ensembles reproduce --preset quick --results /results
FROM python:3.11-slim
ENTRYPOINT ["tf-ensembles"]
CMD ["info", "--check"]

# Such as --build-arg EXTRAS=plot; "all" also has TF-Agents, Ray and the documentation's tools.
ARG EXTRAS=plot,data,linear
COPY . /source
RUN python -m pip install --no-cache-dir --constraint /source/constraints/3.11.txt "/source[$EXTRAS]"
# For GPUs, with the NVIDIA container toolkit on the host:
# RUN python -m pip install --no-cache-dir --constraint /source/constraints/3.11.txt "tensorflow[and-cuda]"
RUN tf-ensembles info --check
